"""From messages to tokens, and from sampled tokens to a message.

- `renderer`: Renderer: messages to ids, sampled ids to a message, and the bridge from one turn to
  the next.
- `select`: Chooses the renderer of a tokenizer.
- `family`: FamilyRenderer: the hand-written rendering of a model family, from the `renderers`
  package.
- `template`: TemplateRenderer: any model that has a chat template.
- `jinja`: Chat templates: Jinja, in the environment that transformers gives them.
- `template_probe`: Renders a short conversation in place of a long one, to learn what a chat
  template appends.
- `tokenizer`: Tokenizer: a folder's vocabulary, special tokens and chat template, without
  transformers.
- `to_dicts`: A conversation as the dictionaries that chat templates and the `renderers` package
  read.
- `parse_tool_calls`: Tool calls and reasoning in sampled text.
- `messages_only`: The renderer of engines that take and give messages. It makes no tokens.
- `reasoning_effort`: How long a model should think, if its template has a word for it.
- `parse_stream`: LiveMessage: the part of a reply that can be sent while it is sampled.
- `structure`: Structural tags: a reply constrained to tool calls in the family's markup.
"""
