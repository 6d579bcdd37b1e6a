"""Every wire that the gateway speaks, by the path that its clients post to."""

from holdfast.gateway.protocol.messages import Wire
from holdfast.gateway.wires.anthropic.messages import AnthropicMessages
from holdfast.gateway.wires.openai.chat import OpenAIChat
from holdfast.gateway.wires.openai.completions import OpenAICompletions
from holdfast.gateway.wires.responses.responses import OpenAIResponses

WIRES: dict[str, Wire] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/completions": OpenAICompletions(),
    "/v1/responses": OpenAIResponses(),
    "/v1/messages": AnthropicMessages(),
}
