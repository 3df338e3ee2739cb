"""How the policies of an episode's agents are stepped: one by one, or side by side in five ways."""
