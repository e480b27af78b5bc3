// The `ai` SDK with its OpenAI-compatible provider against a running server.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "tokenmill",
  baseURL: `${process.env.TOKENMILL_URL}/v1`,
  supportsStructuredOutputs: true,
  includeUsage: true,
});
const name = process.env.TOKENMILL_MODEL;
const model = provider(name);
const prompt = "What is the weather in Paris today?";
const schema = z.object({ city: z.enum(["Paris", "Rome"]), sunny: z.boolean() });
const options = { model, prompt, temperature: 0, maxRetries: 0 };

function weather(calls) {
  return tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]), unit: z.enum(["celsius", "fahrenheit"]) }),
    execute: async (input) => {
      calls.push(input);
      return "sunny";
    },
  });
}

test("text is generated, and streamed the same", async () => {
  const whole = await generateText({ ...options, maxOutputTokens: 12 });
  assert.ok(whole.text.length > 0);
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
  const streamed = streamText({ ...options, maxOutputTokens: 12 });
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
});

test("a tool is called and run", async () => {
  const calls = [];
  const answer = await generateText({ ...options, maxOutputTokens: 80, tools: { weather: weather(calls) }, toolChoice: "required" });
  assert.equal(answer.finishReason, "tool-calls");
  assert.equal(calls.length, answer.toolCalls.length);
  assert.ok(["Paris", "Rome"].includes(calls[0].city));
});

test("a streamed tool call is assembled and run", async () => {
  const calls = [];
  const streamed = streamText({ ...options, maxOutputTokens: 80, tools: { weather: weather(calls) }, toolChoice: "required" });
  const kinds = new Set();
  for await (const part of streamed.fullStream) {
    assert.notEqual(part.type, "error", JSON.stringify(part));
    kinds.add(part.type);
  }
  assert.ok(kinds.has("tool-input-start") && kinds.has("tool-call") && kinds.has("tool-result"));
  assert.ok(calls.length > 0);
});

test("objects follow their schema, whole and streamed", async () => {
  const whole = await generateObject({ ...options, schema, maxOutputTokens: 60 });
  schema.parse(whole.object);
  const streamed = streamObject({ ...options, schema, maxOutputTokens: 60 });
  let pieces = 0;
  for await (const piece of streamed.partialObjectStream) pieces += piece ? 1 : 0;
  assert.ok(pieces > 1);
  schema.parse(await streamed.object);
});

test("many values are embedded in order", async () => {
  const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(name), values: ["one", "two", "one"], maxRetries: 0 });
  assert.equal(embeddings.length, 3);
  assert.deepEqual(embeddings[0], embeddings[2]);
  assert.notDeepEqual(embeddings[0], embeddings[1]);
});
