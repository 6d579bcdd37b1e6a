"""gymnasium's environments.

- `environment`: GymEnvironment: any gymnasium environment that can be put into words.
- `spaces`: Spaces of gymnasium as text: which action a reply means, and what an observation says.
- `values`: Values of numpy as plain ones that a journal can hold.
"""
