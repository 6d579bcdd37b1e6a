"""How values are encoded and checked, and kept from showing secrets.

- `bounds`: What a number has to be so that a record can hold it.
- `near_names`: The known name that a misspelled one is meant to be.
- `declared`: What is given from Python, as the type that was declared.
- `codec`: Records as bytes, and their checksum.
- `text_files`: Text files that users give are UTF-8, and one that is not is named with its first
  bad byte.
- `tokens`: Token ids and logprobs as packed arrays.
- `redaction`: Taking secrets out of texts.
- `file_name`: Ids of users as names of files.
"""
