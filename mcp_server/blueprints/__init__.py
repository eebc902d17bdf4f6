"""Experiment blueprints: a markdown document read into launch arguments."""
