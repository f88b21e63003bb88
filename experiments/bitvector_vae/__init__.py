"""A variational autoencoder of clothes whose latent variable is a vector of bits."""
