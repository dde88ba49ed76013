"""What the heads of a model are like: redundant or not, and what importance and diversity see."""
