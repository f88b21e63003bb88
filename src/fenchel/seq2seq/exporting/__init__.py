"""Models as programs for other runtimes; `fenchel export` writes them."""
