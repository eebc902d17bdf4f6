"""Metrics of training runs: finds and reads metric files, builds series and summaries."""
