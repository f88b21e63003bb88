"""A game: a sender names an image by one of 256 symbols, and a receiver picks it out of 16."""
