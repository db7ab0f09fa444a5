"""The bundled reference engine: a small continuous-batching server that logs its own truth."""
