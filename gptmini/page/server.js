// The engine of the page of gptmini serve: requests to its API.

const engine = (() => {
  const N_LIKELIEST = 10; // number of alternatives of a token
  let key = "";

  // Return the response. If its status is an error, throw an Error with the message of the server.
  async function ask(path, body, signal) {
    const headers = {"Content-Type": "application/json"};
    if (key) headers.Authorization = `Bearer ${key}`;
    const sent = body && {method: "POST", body: JSON.stringify(body)};
    const response = await fetch(path, {headers, signal, ...sent}).catch((error) => {
      throw error.name === "AbortError" ? error : new Error("the server does not answer; start it again");
    });
    if (response.ok) return response;
    const type = response.headers.get("content-type") || "";
    const {error} = type.startsWith("application/json") ? await response.json() : {};
    const message = error?.message ?? `the server answered with the HTTP status ${response.status}`;
    throw Object.assign(new Error(message), {code: error?.code, isAboutKey: response.status === 401});
  }

  // Yield each JSON object in a stream of server-sent events.
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  }

  function tokensOf({content, tokens, token_logprobs, top_logprobs}) {
    if (content) {
      return content.map(({token, logprob, top_logprobs}) => ({
        text: token,
        logprob,
        likeliest: top_logprobs.map((other) => [other.token, other.logprob]),
      }));
    }
    return tokens.map((text, i) => ({
      text,
      logprob: token_logprobs[i],
      likeliest: Object.entries(top_logprobs[i]).sort((a, b) => b[1] - a[1]),
    }));
  }

  async function* generate({messages, prompt}, options, signal) {
    const body = {...options, stream: true};
    if (messages) {
      Object.assign(body, {messages, logprobs: true, top_logprobs: N_LIKELIEST});
      if (messages.at(-1).role === "assistant") body.continue_final_message = true;
    } else {
      Object.assign(body, {prompt, logprobs: N_LIKELIEST});
    }
    const path = messages ? "v1/chat/completions" : "v1/completions";
    for await (const event of events(await ask(path, body, signal))) {
      if (event.error) throw new Error(event.error.message);
      for (const {text, delta, logprobs, finish_reason} of event.choices) {
        yield {
          text: text ?? delta.content ?? "",
          tokens: logprobs ? tokensOf(logprobs) : [],
          finish: finish_reason,
        };
      }
    }
  }

  return {
    setKey: (typed) => (key = typed),
    describe: async () => (await ask("health")).json(),
    attention: async ({messages, prompt}) =>
      (await ask("attention", messages ? {messages} : {text: prompt})).json(),
    generate,
  };
})();
