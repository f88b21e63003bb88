"""A variational autoencoder of digits whose class is a latent variable, known for a few of them."""
