// Run the checker of verify.html under node: node run.js PAGE MODELS CASES
//
// MODELS names files of networks and boxes, one a line. CASES has one case a line: the numbers of its networks,
// those of its boxes, its certificate in base64, the most work, if not the usual one, and what is demanded, as
// JSON. Prints one line of JSON for each model, then for each case.
"use strict";
const fs = require("fs");
const vm = require("vm");

async function main([pagePath, modelsPath, casesPath]) {
  const page = fs.readFileSync(pagePath, "utf8");
  const source = /<script type="text\/plain" id="checker">([^]*?)<\/script>/.exec(page)[1];
  const { check, readModel, digestOf, Rejected } = vm.runInThisContext(
    `${source}\n;({ check, readModel, digestOf, Rejected })`,
  );
  const lines = (path) => fs.readFileSync(path, "utf8").split("\n").filter((line) => line);
  const models = [];
  for (const path of lines(modelsPath)) {
    try {
      const model = await readModel(new Uint8Array(fs.readFileSync(path)));
      models.push(model.network || model.shifts);
      console.log(JSON.stringify({ kind: Object.keys(model)[0], digest: digestOf(models.at(-1)) }));
    } catch (error) {
      if (!(error instanceof Rejected)) throw error;
      models.push(null);
      console.log(JSON.stringify({ kind: "refused", reason: error.message }));
    }
  }
  for (const line of casesPath ? lines(casesPath) : []) {
    const [nets, boxes, proof, most, demand] = line.split("|");
    const given = (list) => list.split(",").filter((n) => n).map((n) => models[n]);
    const bytes = new Uint8Array(Buffer.from(proof, "base64"));
    const found = check(bytes, given(nets), given(boxes), {
      most: most ? Number(most) : undefined,
      demand: demand ? JSON.parse(demand) : undefined,
    });
    console.log(JSON.stringify([found.accepted, found.sentence + found.reason]));
  }
}

main(process.argv.slice(2));
