"""The shapes of NeMo-RL that plug-ins meet, as its main of August 2026 documents them."""
