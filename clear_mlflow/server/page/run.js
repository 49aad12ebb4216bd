"use strict";
// Of a run in training: asks every few seconds whether its state changed, and reloads the page then.
(() => {
  const status = document.getElementById("status");
  if (!status.dataset.followed) return;
  const { run, state, workspace } = status.dataset;
  const runStatus = status.textContent;
  const show = (text) => { status.textContent = `${runStatus}; ${text}`; };
  const address = new URL("run/state", location.href);
  address.search = new URLSearchParams(workspace ? { run_id: run, workspace } : { run_id: run });
  // The browser knows a password in the page's own address, and refuses one in a request's.
  address.username = address.password = "";
  show("new rows appear by themselves");
  const check = async () => {
    if (!document.hidden) {
      try {
        const response = await fetch(address);
        if (!response.ok) throw new Error(`status ${response.status}`);
        if ((await response.json()).state !== state) {
          location.reload();
          return;
        }
        show("new rows appear by themselves");
      } catch (error) {
        show(`the server does not answer (${error.message})`);
      }
    }
    setTimeout(check, 4000);
  };
  setTimeout(check, 4000);
})();
