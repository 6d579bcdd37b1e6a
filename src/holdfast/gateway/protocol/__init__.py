"""What agents and the gateway say to each other, whichever provider's wire it is said on.

- `messages`: What a black-box agent asks and is answered, whatever wire it speaks.
- `errors`: What goes wrong with an agent itself.
- `keys`: Keys: which trajectory a call belongs to, and which attempt of it.
"""
