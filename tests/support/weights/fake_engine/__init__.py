"""A fake engine to which a trainer gives weights, as real engines were seen to take them."""
