"""Training curves: metric files read into series and summaries."""
