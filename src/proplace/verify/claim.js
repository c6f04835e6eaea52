// One certificate against its network: the claim, and the proof of it.
//
// The claim. u = scale * x + shift (then matrix u + offset, where there is one) is what the first layer sees.
// Each parameter lies in an interval [W, W'], [b, b']: within delta of the network, or in the box. All these
// networks have at least the margin, which is >= 0, at x, or at every point of the input box ("robust"); or the one in
// the certificate is among them and has less ("not robust").
//
// Robust. At the first layer the least and the greatest pre-activations are sums of least and greatest
// products; max(0, .) of them is a box that holds all first activations. A later hidden neuron sees h >= 0:
//
//     max(0, L) <= v <= max(0, U),   L = W h + b,   U = W' h + b'.
//
// The least margin is a . v + const. Going back through the hidden layers, each a_k v_k gives way to
//
//     a_k alpha_k L_k           where a_k > 0, for alpha_k in [0, 1],
//     a_k (s_k U_k + t_k)       where a_k < 0, t_k = max of max(0, U) - s_k U over the range of U_k,
//     less gamma_k (U_k - end)  for any gamma_k, end the lower end of the range if gamma_k > 0, else the upper,
//
// each of them below it. The least value of what is left over the box of first activations bounds the margin.
// A tree cuts ranges at 0; each of its leaves must reach the margin.
//
// An input box is a larger network: its first activations are the positive and the negative parts of the
// inputs, then come those of the input maps, then the layers of the network on the two parts of u.

const MAX_WORK = 60000000000; // nanoseconds, estimated beforehand: about a minute
const MIN_MARGIN = 0; // of a robust certificate: an input with less does not reach the class
const COARSEST = 96; // where weights differ by more than 2^96 in size, parameters are cut to that grain

function sumOf(values) {
  let total = 0;
  for (const v of values) total += v;
  return total;
}

function outside(low, values, high) {
  return !values.every((v, i) => low[i] <= v && v <= high[i]);
}

function zeros(n) {
  return new Float64Array(n);
}

// The greatest of f over lists of numbers, at least `start`.
function greatest(start, lists, f) {
  let most = start;
  for (const list of lists) for (const v of list) most = Math.max(most, f(v));
  return most;
}

function inputsOf(network) {
  return (network.matrix || network.layers[0].W)[0].length;
}

class Claim {
  constructor(facts, network, box, most, tick) {
    Object.assign(this, { facts, network, box, most, tick, work: 0 });
    const n = inputsOf(network);
    this.isRobust = facts.get("verdict") === "robust";
    this.asked = numberOf("margin", facts.get("margin"));
    this.widths = network.layers.map(({ W }) => W.length);
    this.x = this.at = numbersOf("input", facts.get("input"), n);
    this.target = indexOf("target", facts.get("target"), Math.max(2, this.widths.at(-1)));
    this.delta = box ? [] : tableOf("delta", facts.get("delta"), this.widths.map(() => 2));
    if (this.delta.some((pair) => Math.min(...pair) < 0)) reject("delta is negative");
    this.low = this.high = null;
    if (facts.has("low")) {
      [this.low, this.high] = ["low", "high"].map((end) => numbersOf(end, facts.get(end), n));
      this.within("the input", this.x);
    }
    this.maps = [];
    if (this.low && this.isRobust) this.widen(n);
    this.inner = this.widths.slice(1, -1);
  }

  // The sizes of the larger network that takes an input box.
  widen(n) {
    const { scale, shift, matrix } = this.network;
    if (scale || shift || !matrix) this.maps.push("scaler");
    if (matrix) this.maps.push("matrix");
    this.mapSizes = this.maps.map((kind) => (kind === "scaler" ? n : matrix.length));
    this.widths = [2 * n, ...this.mapSizes.map((size) => 2 * size), ...this.widths];
  }

  within(name, point) {
    if (outside(this.low, point, this.high)) reject(`${name} lies outside the input box`);
  }

  limit(work) {
    if (work > this.most) {
      const seconds = (n) => `${(n / 1e9).toFixed(0)} s`;
      reject(`checking this would take about ${seconds(work)}, the limit is ${seconds(this.most)}`);
    }
    this.work = work;
  }

  // -- numbers ---------------------------------------------------------------------------------------------

  // Choose how many binary places given numbers have, unless the work is too much.
  //
  // `depth` is the number of factors of the longest product, `fine` and `exact` count the products to come of
  // a given number with a computed one, and of two computed ones.
  choosePlaces(more, depth, fine, exact, mayCut) {
    const { scale, shift, matrix, offset } = this.network, n = this.x.length;
    const factors = depth + (matrix ? 1 : 0);
    const maps = [scale || zeros(n).fill(1), shift || zeros(n), ...(matrix || [])];
    const box = this.low ? [this.low, this.high] : [], added = offset || zeros(matrix ? matrix.length : 0);
    const given = [this.x, this.at, [this.asked], ...maps, added, ...this.delta, ...box, ...more];
    const ends = this.box ? [this.box.low, this.box.high] : [this.network];
    const rows = ends.flatMap(rowsOf);
    const needed = greatest(0, rows, placesOf);
    const coarse = COARSEST - this.leastExponent(ends);
    this.K = Math.max(greatest(0, given, placesOf), mayCut ? Math.min(needed, coarse) : needed);
    this.isCut = needed > this.K;
    const bits = this.K + greatest(greatest(0, given, exponentOf), rows, exponentOf);
    const short = 1 + Math.floor(bits / 64), long = 1 + Math.floor((bits * factors) / 64);
    const products = fine + (matrix ? matrix.length * n : 0);
    const numbers = sumOf([...given, ...rows].map((row) => row.length));
    const larger = sumOf((this.mapSizes || []).map((size) => 4 * n * size));
    this.limit(
      products * (100 + 4 * short * long) + exact * (100 + 4 * long * long) + (numbers + larger) * (3000 + 4 * long),
    );
  }

  // The exponent of the layer with the smallest largest weight, without layers of zeros.
  leastExponent(ends) {
    const sizes = this.network.layers.map((_, i) =>
      greatest(0, ends.flatMap(({ layers }) => layers[i].W), Math.abs),
    );
    const exponents = sizes.filter((size) => size > 0).map(exponentOf);
    return exponents.length ? Math.min(...exponents) : 0;
  }

  // Given numbers with K places, cut down or up where they have more.
  units(values, up = false) {
    return Array.from(values, (v) => (up ? -inUnits(-v, this.K) : inUnits(v, this.K)));
  }

  // The lower or the upper ends of all intervals, with K places.
  ends(isUpper) {
    return this.network.layers.map(({ W, b }, i) => {
      if (this.box) {
        const layer = (isUpper ? this.box.high : this.box.low).layers[i];
        return {
          W: layer.W.map((row) => this.units(row, isUpper)),
          b: this.units(layer.b || zeros(W.length), isUpper),
        };
      }
      const [dW, db] = this.units(this.delta[i]);
      // A parameter that is cut is cut down, by less than a unit, so the interval grows by one.
      const by = (radius, rows) => {
        const grown = radius + (this.isCut && greatest(0, rows, placesOf) > this.K ? 1n : 0n);
        return isUpper ? grown : -grown;
      };
      const moveW = by(dW, W), moveB = b ? by(db, [b]) : 0n;
      return {
        W: W.map((row) => this.units(row).map((w) => w + moveW)),
        b: this.units(b || zeros(W.length)).map((v) => v + moveB),
      };
    });
  }

  // What the first layer sees at a point: integers, and their places.
  seen(point) {
    const { scale, shift, matrix, offset } = this.network, K = this.K;
    let v = this.units(point), p = K;
    if (scale || shift) {
      const factors = scale ? this.units(scale) : v.map(() => 1n << BigInt(K));
      const terms = shift ? this.units(shift) : v.map(() => 0n);
      v = v.map((x, j) => x * factors[j] + (terms[j] << BigInt(p)));
      p += K;
    }
    if (matrix) {
      const terms = offset ? this.units(offset) : matrix.map(() => 0n);
      v = this.affine(matrix.map((row) => this.units(row)), v, terms, p);
      p += K;
    }
    return { v, p };
  }

  // W v + b of v with p places; the result has p + K.
  affine(W, v, b, p) {
    return W.map((row, k) => dot(row, v) + (b[k] << BigInt(p)));
  }

  // The value of the target and that of each rival, from the lower and the upper values of all outputs.
  duels(low, high) {
    if (low.length === 1) return [this.target ? [low[0], 0n] : [0n, high[0]]];
    return high.flatMap((v, o) => (o === this.target ? [] : [[low[this.target], v]]));
  }

  // -- not robust ------------------------------------------------------------------------------------------

  notRobust() {
    const layers = listOf("shifted", this.facts.get("shifted"), this.widths.length);
    const moved = layers.map((layer, i) => this.movedLayer(layer, this.network.layers[i]));
    if (this.low) {
      this.at = numbersOf("point", this.facts.get("point"), this.x.length);
      this.within("the point", this.at);
    }
    const values = moved.flatMap(({ W, b }) => [...W, b]);
    this.choosePlaces(values, moved.length + 2, sumOf(values.map((row) => row.length)), 0, false);
    const low = this.ends(false), high = this.ends(true);
    let { v, p } = this.seen(this.at);
    moved.forEach((layer, i) => {
      this.tick(i, moved.length);
      const W = layer.W.map((row) => this.units(row)), b = this.units(layer.b);
      const far = W.some((row, k) => outside(low[i].W[k], row, high[i].W[k]));
      if (far || outside(low[i].b, b, high[i].b)) {
        const where = this.box ? "the shift set" : "delta";
        reject(`a ${far ? "weight" : "bias"} of layer ${i} lies outside ${where}`);
      }
      v = this.affine(W, i ? v.map(positive) : v, b, p);
      p += this.K;
    });
    const margin = this.units([this.asked])[0];
    if (this.duels(v, v).every(([mine, other]) => compare(mine - other, p, margin, this.K) >= 0)) {
      reject("the shifted network has the margin, so it refutes nothing");
    }
  }

  movedLayer(layer, { W, b }) {
    if (!hasFields(layer, ["W", "b"])) reject("each layer of the shifted network must have exactly W and b");
    if (!b && layer.get("b") !== null) reject("the shifted network has a bias where the network has none");
    return {
      W: tableOf("W", layer.get("W"), W.map((row) => row.length)),
      b: b ? numbersOf("b", layer.get("b"), W.length) : zeros(W.length),
    };
  }

  // -- robust ----------------------------------------------------------------------------------------------

  robust() {
    if (this.asked < MIN_MARGIN) reject(`margin is ${written(this.asked)}: the class is reached from 0.0 on`);
    this.tighten = this.facts.get("tighten");
    if (typeof this.tighten !== "boolean") reject("tighten is neither true nor false");
    const lower = tableOf("lower", this.facts.get("lower"), this.inner);
    const upper = tableOf("upper", this.facts.get("upper"), this.inner);
    const { trees, leaves, fine, exact } = this.readTrees();
    const slopes = [...lower, ...leaves.map((leaf) => [...leaf.alpha.values()])];
    if (slopes.some((list) => list.some((v) => !(v >= 0 && v <= 1)))) {
      reject("the slope of a lower side lies outside [0, 1]");
    }
    const values = leaves.flatMap((leaf) => [[...leaf.alpha.values()], [...leaf.gamma.values()]]);
    this.choosePlaces([...lower, ...upper, ...values], 4 + 2 * this.inner.length, fine, exact, true);
    this.lower = lower.map((list) => this.units(list));
    this.upper = upper.map((list) => this.units(list));
    this.lowEnds = this.ends(false);
    this.highEnds = this.ends(true);
    const first = this.maps.length ? this.firstOfInputs() : this.firstOfLayer();
    if (this.maps.length) this.putInFront();
    this.box0 = { low: first.low.map(positive), high: first.high.map(positive), p: first.p };
    this.done = 0;
    this.passes = leaves.length + (this.tighten ? 2 * sumOf(this.inner.slice(1)) : 0);
    this.findRanges();
    trees.forEach((tree, rival) => this.follow(tree, rival, this.objective(rival, first)));
  }

  // The trees, with the work that they take.
  readTrees() {
    const outputs = this.widths.at(-1), inner = this.inner, widths = this.widths;
    const trees = listOf("trees", this.facts.get("trees"), Math.max(1, outputs - 1));
    trees.forEach((tree) => listOf("tree", tree));
    const nodes = sumOf(trees.map((tree) => tree.length));
    const count = sumOf(trees.map((tree) => tree.filter((node) => node instanceof Map).length));
    if (2 * count !== nodes + trees.length) reject("a tree is incomplete, or has nodes after its last leaf");
    const sizes = inner.map((n, i) => n * widths[i]);
    const seen = this.maps.length ? 0 : this.network.layers[0].W[0].length;
    let fine = 2 * widths[0] * seen + 3 * sumOf(sizes), exact = 0;
    const passes = inner.map((n, i) => (this.tighten && i ? 2 * n : 0));
    [...passes, count].forEach((n, i) => {
      const neurons = sumOf(widths.slice(0, i + 1));
      fine += n * (sumOf(sizes.slice(0, i)) + 8 * neurons);
      exact += n * 4 * neurons;
    });
    this.limit(100 * (fine + exact));
    const read = trees.map((tree) => tree.map((node) => this.readNode(node)));
    const leaves = read.flat().filter((node) => node.alpha);
    fine += sumOf(leaves.map(({ gamma }) => sumOf([...gamma.keys()].map((key) => widths[this.placeOf(key)[0]]))));
    return { trees: read, leaves, fine, exact };
  }

  // A split { split: key }, or a leaf's own { alpha, gamma }, Maps from keys to numbers.
  readNode(node) {
    if (Array.isArray(node)) return { split: this.keyOf(...listOf("split", node, 2)) };
    const known = node instanceof Map && [...node.keys()].every((name) => ["lower", "gamma"].includes(name));
    if (!known) reject("a node is neither a split nor a leaf with lower and gamma");
    const [alpha, gamma] = ["lower", "gamma"].map((name) => {
      const triples = listOf(name, node.has(name) ? node.get(name) : []);
      return new Map(triples.map((triple) => {
        const [layer, neuron, value] = listOf(name, triple, 3);
        return [this.keyOf(layer, neuron), numberOf(name, value)];
      }));
    });
    return { alpha, gamma };
  }

  // A neuron behind the first hidden layer, as one number.
  keyOf(layer, neuron) {
    const i = indexOf("layer", layer, this.inner.length + 1);
    if (i === 0) reject("a tree must not split layer 0, because its activations form an exact box");
    return sumOf(this.inner.slice(0, i - 1)) + indexOf("neuron", neuron, this.inner[i - 1]);
  }

  // Its position among the inner layers, and in its layer.
  placeOf(key) {
    let i = 0, k = key;
    while (k >= this.inner[i]) k -= this.inner[i++];
    return [i, k];
  }

  // The least and the greatest pre-activations of the first layer; u may have any signs.
  firstOfLayer() {
    const { v, p } = this.seen(this.x), K = this.K, low = this.lowEnds[0], high = this.highEnds[0];
    const sum = (row, other, b) => {
      let total = b << BigInt(p);
      v.forEach((u, j) => (total += u * (u >= 0n ? row[j] : other[j])));
      return total;
    };
    return {
      low: low.W.map((row, k) => sum(row, high.W[k], low.b[k])),
      high: high.W.map((row, k) => sum(row, low.W[k], high.b[k])),
      p: p + K,
    };
  }

  // The input box and of minus them, whose positive parts are the first activations.
  firstOfInputs() {
    const low = this.units(this.low), high = this.units(this.high), minus = (list) => list.map((v) => -v);
    return { low: [...low, ...minus(high)], high: [...high, ...minus(low)], p: this.K };
  }

  // Put the input maps in front of the layers, which then act on positive and negative parts.
  putInFront() {
    const { scale, shift, matrix, offset } = this.network, n = this.x.length, one = 1n << BigInt(this.K);
    const minus = (list) => list.map((v) => -v);
    const fixed = this.maps.map((kind) => {
      const factors = scale ? this.units(scale) : Array(n).fill(one);
      const rows = kind === "matrix"
        ? matrix.map((row) => this.units(row))
        : factors.map((s, i) => factors.map((_, j) => (i === j ? s : 0n)));
      const given = kind === "matrix" ? offset : shift;
      const b = given ? this.units(given) : rows.map(() => 0n);
      return {
        W: [...rows.map((row) => [...row, ...minus(row)]), ...rows.map((row) => [...minus(row), ...row])],
        b: [...b, ...minus(b)],
      };
    });
    const split = (end, other) => {
      const [first, ...rest] = end;
      const W = first.W.map((row, k) => [...row, ...minus(other[0].W[k])]);
      return [null, ...fixed, { W, b: first.b }, ...rest]; // the input box stands for the first layer
    };
    [this.lowEnds, this.highEnds] = [split(this.lowEnds, this.highEnds), split(this.highEnds, this.lowEnds)];
  }

  // What a tree must bound: a . v + const over the last activations v.
  objective(rival, first) {
    const low = this.lowEnds.at(-1), high = this.highEnds.at(-1);
    if (this.widths.length === 1) { // the outputs see u itself
      const [mine, other] = this.duels(first.low, first.high)[rival];
      return { a: [], total: mine - other, p: first.p };
    }
    const [mine, other] = this.duels(low.b, high.b)[rival];
    const a = low.W[0].map((_, j) => {
      const [w, v] = this.duels(low.W.map((row) => row[j]), high.W.map((row) => row[j]))[rival];
      return w - v;
    });
    return { a, total: mine - other, p: this.K };
  }

  // The range of U of each inner neuron: by intervals, and where asked by backward passes.
  findRanges() {
    this.ranges = [];
    let { low, high, p } = this.box0;
    const least = (row, b, from, to) => dot(row, row.map((w, j) => (w >= 0n ? from[j] : to[j]))) + (b << BigInt(p));
    this.inner.forEach((_, i) => {
      const under = this.lowEnds[i + 1], over = this.highEnds[i + 1], places = p + this.K;
      const L = under.W.map((row, k) => least(row, under.b[k], low, high));
      let from = over.W.map((row, k) => least(row, over.b[k], low, high));
      let to = over.W.map((row, k) => least(row, over.b[k], high, low));
      const next = { low: L.map(positive), high: to.map(positive), p: places };
      let range = { from, to, p: places };
      if (this.tighten && i) range = this.tightened(over, range);
      const offsets = range.from.map((lo, k) => this.offset(this.upper[i][k], lo, range.to[k]));
      this.ranges.push({ ...range, offsets });
      ({ low, high, p } = next);
    });
  }

  // Ranges that are also those of backward passes.
  tightened({ W, b }, range) {
    const found = W.map((row, k) => {
      const least = this.bound({ a: row, total: b[k], p: this.K });
      const most = this.bound({ a: row.map((w) => -w), total: -b[k], p: this.K });
      return [least, { v: -most.v, p: most.p }];
    });
    const p = greatest(range.p, found, (sum) => sum.p);
    const at = (v, places) => v << BigInt(p - places);
    const from = range.from.map((v, k) => {
      const one = at(v, range.p), other = at(found[k][0].v, found[k][0].p);
      return one > other ? one : other;
    });
    const to = range.to.map((v, k) => {
      const one = at(v, range.p), other = at(found[k][1].v, found[k][1].p);
      return one < other ? one : other;
    });
    return { from, to, p };
  }

  // The greatest max(0, U) - s U over a range: it is convex, so at an end. It has K places more.
  offset(s, lo, hi) {
    const at = (v) => (positive(v) << BigInt(this.K)) - s * v;
    return at(lo) > at(hi) ? at(lo) : at(hi);
  }

  // Bound a . v + total from below, v the activations behind the ranges found so far.
  bound({ a, total, p }, signs = new Map(), alpha = new Map(), gamma = new Map()) {
    this.tick(this.done++, this.passes);
    const sum = new Sum(total, p), K = this.K;
    const own = this.ranges.map(() => new Set());
    for (const key of [...signs.keys(), ...alpha.keys(), ...gamma.keys()]) {
      const [i, k] = this.placeOf(key);
      own[i].add(k);
    }
    let start = 0;
    const starts = this.ranges.map((_, i) => (start += i ? this.inner[i - 1] : 0));
    for (let i = this.ranges.length - 1; i >= 0; i--) {
      const range = this.ranges[i], under = this.lowEnds[i + 1], over = this.highEnds[i + 1];
      const next = Array(this.widths[i]).fill(0n);
      const use = (c, layer, k) => { // c times L or U of neuron k; c has p + K places
        if (!c) return;
        sum.add(c * layer.b[k], p + 2 * K);
        layer.W[k].forEach((w, j) => {
          if (w) next[j] += c * w;
        });
      };
      a.forEach((c, k) => {
        const key = starts[i] + k, isOwn = own[i].has(k), sign = (isOwn && signs.get(key)) || 0;
        let pushed = 0n;
        if (isOwn && gamma.has(key)) {
          const g = inUnits(gamma.get(key), K);
          const lo = sign > 0 ? positive(range.from[k]) : range.from[k];
          const hi = sign < 0 && range.to[k] > 0n ? 0n : range.to[k];
          sum.add(g * (g > 0n ? lo : hi), K + range.p);
          pushed = g << BigInt(p);
        }
        if (c > 0n) {
          const slope = isOwn && alpha.has(key) ? inUnits(alpha.get(key), K) : this.lower[i][k];
          use(c * slope, under, k);
          use(-pushed, over, k);
        } else if (sign) { // here the ReLU is 0, or U
          use((sign > 0 ? c << BigInt(K) : 0n) - pushed, over, k);
        } else {
          if (c) sum.add(c * range.offsets[k], p + range.p + K);
          use(c * this.upper[i][k] - pushed, over, k);
        }
      });
      a = next;
      p += 2 * K;
    }
    const { low, high } = this.box0;
    a.forEach((c, j) => {
      if (c) sum.add(c * (c > 0n ? low[j] : high[j]), p + this.box0.p);
    });
    return sum;
  }

  // Go through a tree in preorder: a split, then what follows U <= 0, then what follows U >= 0.
  follow(tree, rival, objective) {
    const margin = this.units([this.asked])[0], todo = [new Map()], name = `tree ${rival}`;
    for (const node of tree) {
      if (!todo.length) reject(`${name} has nodes after its last leaf`);
      const signs = todo.pop();
      if (node.split !== undefined) {
        if (signs.has(node.split)) reject(`${name} splits a neuron twice`);
        todo.push(new Map([...signs, [node.split, 1]]), new Map([...signs, [node.split, -1]]));
        continue;
      }
      const { v, p } = this.bound(objective, signs, node.alpha, node.gamma);
      if (compare(v, p, margin, this.K) < 0) reject(`${name}: a leaf does not prove the margin`);
    }
    if (todo.length) reject(`${name} ends before its last leaf`);
  }
}
