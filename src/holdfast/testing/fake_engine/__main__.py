"""`python -m holdfast.testing.fake_engine`: one that is started by hand."""

from holdfast.testing.fake_engine.handle import main

main()
