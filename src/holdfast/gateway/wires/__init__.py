"""The providers' wires, one module each: from bytes to an `Ask`, and from an `Answer` to bytes."""
