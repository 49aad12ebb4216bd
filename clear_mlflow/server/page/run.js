"use strict";
// Of a run in training: asks every few seconds whether something came, and loads the page anew.
(() => {
  const status = document.getElementById("status");
  if (!status.dataset.followed) return;
  const { run, state, workspace } = status.dataset;
  const said = status.textContent;
  const say = (text) => { status.textContent = `${said}; ${text}`; };
  const address = new URL("run/state", location.href);
  address.search = new URLSearchParams(workspace ? { run_id: run, workspace } : { run_id: run });
  // A password in the page's own address is known to the browser, and refused in a request's.
  address.username = address.password = "";
  say("what comes is shown by itself");
  const ask = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(address);
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        if ((await answer.json()).state !== state) {
          location.reload();
          return;
        }
        say("what comes is shown by itself");
      } catch (error) {
        say(`the server does not answer (${error.message})`);
      }
    }
    setTimeout(ask, 4000);
  };
  setTimeout(ask, 4000);
})();
