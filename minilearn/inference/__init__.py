"""Use a trained model: validate, predict, export."""
