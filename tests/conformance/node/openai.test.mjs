// The official `openai` package against a running server: URL and model come from the environment.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const model = process.env.TOKENMILL_MODEL;
const client = new OpenAI({ baseURL: `${process.env.TOKENMILL_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the weather in Paris today?" }];
const tools = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "The weather of a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["celsius", "fahrenheit"] } },
        required: ["city", "unit"],
        additionalProperties: false,
      },
    },
  },
];
const Forecast = z.object({ city: z.enum(["Paris", "Rome"]), sunny: z.boolean(), degrees: z.number().int() });

function checkCall(call) {
  assert.equal(call.type, "function");
  assert.equal(call.function.name, "get_weather");
  const given = JSON.parse(call.function.arguments);
  assert.deepEqual(Object.keys(given), ["city", "unit"]);
  assert.ok(["celsius", "fahrenheit"].includes(given.unit));
}

test("models are listed", async () => {
  const names = [];
  for await (const entry of client.models.list()) names.push(entry.id);
  assert.ok(names.includes(model));
});

test("a stream says what the whole answer says, and its usage", async () => {
  const asked = { model, messages, temperature: 0, max_tokens: 12 };
  const whole = await client.chat.completions.create(asked);
  const stream = await client.chat.completions.create({
    ...asked,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  let finish = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, whole.choices[0].finish_reason);
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [
    whole.usage.prompt_tokens,
    whole.usage.completion_tokens,
  ]);
});

test("a required tool is called, whole and streamed", async () => {
  const asked = { model, messages, tools, tool_choice: "required", temperature: 0, max_tokens: 80 };
  const whole = await client.chat.completions.create(asked);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  checkCall(whole.choices[0].message.tool_calls[0]);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.equal(streamed.choices[0].finish_reason, "tool_calls");
  checkCall(streamed.choices[0].message.tool_calls[0]);
  assert.equal(
    streamed.choices[0].message.tool_calls[0].function.arguments,
    whole.choices[0].message.tool_calls[0].function.arguments,
  );
});

test("a tool's answer goes back to the model", async () => {
  const call = { id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city":"Paris"}' } };
  const answer = await client.chat.completions.create({
    model,
    messages: [
      ...messages,
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "call_1", content: "sunny, 21 degrees" },
    ],
    tools,
    tool_choice: "none",
    max_tokens: 8,
  });
  assert.equal(answer.choices[0].message.tool_calls, undefined);
  assert.ok(answer.choices[0].message.content.length > 0);
});

test("structured output is parsed into the schema's type", async () => {
  const asked = { model, messages, max_tokens: 60, response_format: zodResponseFormat(Forecast, "forecast") };
  const parsed = await client.chat.completions.parse(asked);
  Forecast.parse(parsed.choices[0].message.parsed);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  Forecast.parse(streamed.choices[0].message.parsed);
});

test("embeddings arrive as numbers of unit length", async () => {
  const answer = await client.embeddings.create({ model, input: ["hello", "world"] });
  assert.equal(answer.data.length, 2);
  for (const { embedding } of answer.data) {
    const length = Math.sqrt(embedding.reduce((sum, value) => sum + value * value, 0));
    assert.ok(Math.abs(length - 1) < 1e-3, `length ${length}`);
  }
});

test("errors are the API's own classes", async () => {
  await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), OpenAI.NotFoundError);
  await assert.rejects(
    client.chat.completions.create({ model, messages, temperature: 9 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
});

test("a stream that is left is cancelled", async () => {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 400, ignore_eos: true, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta?.content) break;
  }
  const text = await (await fetch(`${process.env.TOKENMILL_URL}/health`)).json();
  assert.equal(text.status, "ready");
});
