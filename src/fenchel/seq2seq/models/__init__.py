"""The models: encoders, decoders, ensembles, and the folder that a model is saved in."""
