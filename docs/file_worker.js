// Browsers start no worker from a file. There the search's worker runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve));
      inside.document.head.append(script);
      this.inside = inside;
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}

// The search takes each word for the start of others: "in" finds "install", "no" finds "node".
// A question is therefore asked without its small words.
const QUERY = 2; // the theme's SearchMessageType
const SMALL = new Set(
  (
    "a about after all already am an and any are as at be been but by can cannot could did do does don't for from " +
    "get gets had has have how i i'm if in into is it it's its like me my need no not of on or our own same " +
    "should so some that the their them there these they this to us use used using want was we what what's " +
    "when where which while who why will with work works would you your"
  ).split(" "),
);
window.Worker = class extends window.Worker {
  postMessage(message) {
    if (message.type === QUERY) {
      const words = message.data.split(/[\s?]+/).filter((word) => !SMALL.has(word.toLowerCase()));
      // One word may be the start of a longer one, which is still being typed.
      if (words.some(Boolean)) message = { ...message, data: words.join(" ") };
    }
    super.postMessage(message);
  }
};
