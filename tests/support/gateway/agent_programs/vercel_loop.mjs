// The Vercel AI SDK with its default provider: OpenAI's responses, whose items it refers to by id.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Beside what `make agents` installed, and not beside this file.
const require = createRequire(pathToFileURL(`${process.env.AGENTS_DIR}/package.json`));
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, stepCountIs, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { z } = await load("zod");

const task = JSON.parse(fs.readFileSync(process.env.HOLDFAST_TASK));
const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const plus = tool({
  description: "Adds two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => `${a + b}`,
});
const asked = {
  model: openai(process.env.HOLDFAST_MODEL),
  tools: { plus },
  stopWhen: stepCountIs(6),
};

async function said(more) {
  if (!process.argv.includes("--stream")) return await generateText({ ...asked, ...more });
  const stream = streamText({ ...asked, ...more });
  for await (const _ of stream.textStream);
  return { text: await stream.text, providerMetadata: await stream.providerMetadata };
}

const first = await said({ prompt: task.messages.at(-1).content });
console.log(first.text);
if (process.argv.includes("--state")) {
  const previousResponseId = first.providerMetadata.openai.responseId;
  const more = { prompt: "and then?", providerOptions: { openai: { previousResponseId } } };
  console.log((await said(more)).text);
}
