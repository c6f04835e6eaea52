// Certificates of fixed predictions: no network of the set gives the class to any input of some spaces.
//
// A space is a product of intervals and of sets of values that some columns take together. A tree cuts it, and
// each leaf has a certificate of format 3 that another class wins, with a margin > 0, on a box that holds what
// is left of the space there.

// The first of the least values (so that of 0 and -0 the first is kept), or of the greatest.
function leastOf(values) {
  return values.reduce((best, v) => (v < best ? v : best));
}

function greatestOf(values) {
  return values.reduce((best, v) => (v > best ? v : best));
}

class Space {
  constructor(low, high, choices) {
    Object.assign(this, { low, high, choices });
  }

  static read(space, n) {
    if (!hasFields(space, ["low", "high", "choices"])) reject("a space must have exactly the fields low, high and choices");
    const [low, high] = ["low", "high"].map((end) => numbersOf(end, space.get(end), n));
    const seen = new Set();
    const choices = listOf("choices", space.get("choices")).map((choice) => {
      if (!hasFields(choice, ["columns", "values"])) reject("a choice must have exactly the fields columns and values");
      const columns = listOf("columns", choice.get("columns")).map((j) => indexOf("columns", j, n));
      const values = listOf("values", choice.get("values"));
      const wanted = seen.size + columns.length;
      columns.forEach((j) => seen.add(j));
      if (!values.length || !columns.length || seen.size < wanted) {
        reject("a choice has no values or columns, or a column twice");
      }
      return { columns, values: tableOf("values", values, values.map(() => columns.length)) };
    });
    const found = new Space(low, high, choices), ends = found.ends();
    if (outside(low, low, high) || !sameNumbers(ends.low, low) || !sameNumbers(ends.high, high)) {
      reject("the ends of a space are crossed, or not those of its choices");
    }
    return found;
  }

  // Ends of the smallest box around what is left.
  ends() {
    const low = this.low.slice(), high = this.high.slice();
    for (const { columns, values } of this.choices) {
      columns.forEach((j, place) => {
        const column = values.map((row) => row[place]);
        low[j] = leastOf(column);
        high[j] = greatestOf(column);
      });
    }
    return { low, high };
  }

  // The two parts of a cut: a column at a number, or the values of a choice behind the first few.
  parts(node) {
    if (node.has("column")) {
      const j = indexOf("column", node.get("column"), this.low.length), at = numberOf("at", node.get("at"));
      if (this.choices.some(({ columns }) => columns.includes(j))) reject("a cut goes through the columns of a choice");
      const low = this.low.slice(), high = this.high.slice();
      low[j] = Math.max(at, low[j]);
      high[j] = Math.min(at, high[j]);
      return [new Space(this.low, high, this.choices), new Space(low, this.high, this.choices)];
    }
    const i = indexOf("choice", node.get("choice"), this.choices.length), { columns, values } = this.choices[i];
    const at = indexOf("at", node.get("at"), values.length);
    if (at === 0) reject("a cut leaves one of its parts without values");
    return [values.slice(0, at), values.slice(at)].map((some) => {
      const choices = this.choices.slice();
      choices[i] = { columns, values: some };
      return new Space(this.low, this.high, choices);
    });
  }
}

// The network with the logits of two classes alone.
function duelOf(network, other, target) {
  const last = network.layers.at(-1);
  const pick = (list) => list && [list[other], list[target]];
  const layer = { W: pick(last.W), b: last.b && Float64Array.from(pick(last.b)) };
  return { ...network, layers: [...network.layers.slice(0, -1), layer] };
}

class Fixed {
  constructor(facts, network, shifts, most, tick) {
    const named = facts.has("shifts") ? "shifts" : "delta";
    checkFields(facts, ["format", "network", "target", named, "spaces", "trees"]);
    checkNetwork(facts, network);
    Object.assign(this, { facts, network, left: most, most, tick, margin: Infinity });
    this.box = named === "shifts" ? boxOf(facts.get("shifts"), network, shifts) : null;
    this.delta = this.box ? [] : tableOf("delta", facts.get("delta"), network.layers.map(() => 2));
    this.outputs = network.layers.at(-1).W.length;
    this.target = indexOf("target", facts.get("target"), Math.max(2, this.outputs));
    const n = inputsOf(network);
    this.spaces = listOf("spaces", facts.get("spaces")).map((space) => Space.read(space, n));
    if (!this.spaces.length) reject("the list of spaces is empty");
  }

  // Follow the trees; returns what is proved, and the work that it took.
  check() {
    const trees = listOf("trees", this.facts.get("trees"), this.spaces.length);
    trees.forEach((tree, i) => this.follow(listOf("tree", tree), this.spaces[i]));
    const column = (end) => (_, j) => this.spaces.map((space) => space[end][j]);
    const { low, high } = this.spaces[0];
    return {
      work: this.most - this.left,
      statement: {
        verdict: "fixed",
        target: this.target,
        delta: this.delta,
        input: [],
        margin: this.margin,
        shifts: this.box ? this.facts.get("shifts") : null,
        inside: !this.box || holds(this.box, this.network),
        network: this.facts.get("network"),
        low: Array.from(low, column("low")).map(leastOf),
        high: Array.from(high, column("high")).map(greatestOf),
        spaces: this.spaces,
      },
    };
  }

  follow(tree, space) {
    const todo = [space];
    tree.forEach((node, n) => {
      this.tick(n, tree.length);
      if (!todo.length || !(node instanceof Map)) {
        reject("a tree has nodes after its last leaf, or an item that is not a node");
      }
      const here = todo.pop();
      if (hasFields(node, ["other", "certificate"])) this.leaf(node, here);
      else if (hasFields(node, ["column", "at"]) || hasFields(node, ["choice", "at"])) {
        todo.push(...here.parts(node).reverse());
      } else reject("a node is neither a cut nor a leaf with a certificate");
    });
    if (todo.length) reject("a tree ends before its last leaf");
  }

  // Check that another class wins on a box that holds what is left of the space.
  leaf(node, space) {
    const other = indexOf("other", node.get("other"), Math.max(2, this.outputs)), proof = node.get("certificate");
    if (other === this.target) reject("other must not be the target class");
    if (!(proof instanceof Map) || proof.get("format") !== FORMAT_INPUTS) {
      reject(`a leaf has no certificate of format ${FORMAT_INPUTS}`);
    }
    const several = this.outputs > 2, pair = (network) => duelOf(network, other, this.target);
    const network = several ? pair(this.network) : this.network;
    const box = this.box && several ? { low: pair(this.box.low), high: pair(this.box.high) } : this.box;
    const { statement, work } = checkOne(proof, network, box, this.left, this.tick);
    if (statement.verdict !== "robust" || statement.target !== (several ? 0 : other)) {
      reject("the certificate of a leaf must prove that the other class wins");
    }
    if (!(statement.margin > 0)) reject("a leaf proves no positive margin: a tie may count as acceptance");
    const ends = space.ends(), { low, high } = statement;
    if (outside(low, ends.low, high) || outside(low, ends.high, high)) {
      reject("a leaf does not cover what is left of its space");
    }
    const sameDelta = this.delta.every((pair, i) => statement.delta.length && sameNumbers(pair, statement.delta[i]));
    if ((statement.shifts === null) !== (this.box === null) || !sameDelta) {
      reject("a leaf names another shift set");
    }
    this.margin = Math.min(this.margin, statement.margin);
    this.left -= work;
  }
}
