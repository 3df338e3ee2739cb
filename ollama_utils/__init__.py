"""Every word to and from a model: client, dispatcher, batching, encoders and the simulator."""
