async function answerOf(answer) {
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const detail = Array.isArray(body.detail) ? body.detail.map(one => one.msg).join("; ") : body.detail;
  throw new Error(detail || `The server answered ${answer.status}.`);
}

export const get = async path => answerOf(await fetch(`api/${path}`, {credentials: "same-origin"}));

export const post = async (path, body) => answerOf(await fetch(`api/${path}`, {
  method: "POST", credentials: "same-origin", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body),
}));
