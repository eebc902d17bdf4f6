"""Verbs by which a person sets up access, notices and clients, and checks a machine."""
