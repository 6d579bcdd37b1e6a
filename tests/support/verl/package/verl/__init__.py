"""A stand-in for verl: the names that an agent loop imports, in the shapes that verl documents."""
