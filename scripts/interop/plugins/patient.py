"""A pytest plugin: eval-protocol waits longer than 15 seconds for a gym that it has started."""

SECONDS = 120


def pytest_configure() -> None:
    from eval_protocol.pytest.default_mcp_gym_rollout_processor import MCPServerManager

    wait = MCPServerManager._wait_for_server_ready
    MCPServerManager._wait_for_server_ready = lambda self, timeout=0: wait(self, timeout=SECONDS)
