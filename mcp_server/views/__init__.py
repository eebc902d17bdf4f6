"""What is answered: response models and their text, shared by tools and the command line."""
