"""The sinks. A type's name is its module's; a module exposes `SINK`. No sink imports another."""
