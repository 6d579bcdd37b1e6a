"""`python -m holdfast.testing.fake_engine`: starts a fake engine by hand."""

from holdfast.testing.fake_engine.handle import main

main()
