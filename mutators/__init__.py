"""How a query is reworded: by a model (rewrite) or by rule (lexical)."""
