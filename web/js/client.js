// The page's side of the worker.

export class Client {
  constructor(onSteps = () => {}) {
    this.waiting = new Map();
    this.last = 0;
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => {
      if (data.event) {
        onSteps(data);
        return;
      }
      const { resolve, reject } = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if ("error" in data) reject(Object.assign(new Error(data.error), { told: data.told }));
      else resolve(data.result);
    };
    this.worker.onerror = (event) => {
      const error = new Error(`the worker can't run: ${event.message ?? "a file of the page is missing; run make web"}`);
      for (const { reject } of this.waiting.values()) reject(error);
      this.waiting.clear();
    };
  }

  // Raises Error; its `told` is true where the message is a sentence for the person, not a defect of the page.
  call(call, args) {
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, call, args });
    });
  }

  stop() {
    this.worker.postMessage({ call: "stop" });
  }
}
