"""Where things are, whichever test asks."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"

WIRE = TESTS / "wire"
"""What a real vLLM 0.32 said."""

GOLDEN = TESTS / "golden"
"""Journals of every released schema version."""

FIXTURES = TESTS / "evaluation" / "fixtures"
"""Data sets and logs in the formats of others."""

AGENT_PROGRAMS = SUPPORT / "gateway" / "agent_programs"
MCP_SERVERS = SUPPORT / "environments" / "mcp_servers"
