"""Output that must match a grammar: which tokens may come next, and when the text is complete."""
