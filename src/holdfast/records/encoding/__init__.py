"""How values are encoded, checked, and kept from showing secrets.

- `bounds`: The bounds of numbers and texts that a record can hold.
- `near_names`: The known name that a misspelled name probably means.
- `declared`: Converts values from Python code to their declared types.
- `codec`: Records as bytes, and their checksum.
- `text_files`: Text files from users, which must be UTF-8.
- `tokens`: Token ids and logprobs as packed arrays.
- `redaction`: Removes secrets from texts.
- `file_name`: Ids of users as names of files.
"""
