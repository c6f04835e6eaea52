// Networks and boxes of networks from .npz files: plain arrays of doubles in a zip.
//
// Only what numpy writes is read. Anything unusual in the zip (a password, comments, parts that overlap or are
// out of order, sizes of 64 bits, bytes in front or behind) is refused, as checker.py does, so that no two readers
// can see different arrays in one file.

const MAX_NUMBERS = 4000000; // in a network file; twice as many in a file of shifts
const NPY_HEADER = /^\{'descr': '<f8', 'fortran_order': False, 'shape': \((\d{1,9}),(?: (\d{1,9}))?\), \} *\n$/;
const FRONT = ["scale", "shift", "matrix", "offset"];

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
  return n;
});

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = (crc >>> 8) ^ CRC_TABLE[(crc ^ byte) & 0xff];
  return ~crc >>> 0;
}

function latin(bytes) {
  return Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
}

// Little-endian numbers of a file, which must lie inside of it.
class Bytes {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get length() {
    return this.bytes.length;
  }

  short(at) {
    return this.has(at, 2) && this.view.getUint16(at, true);
  }

  long(at) {
    return this.has(at, 4) && this.view.getUint32(at, true);
  }

  slice(at, size) {
    return this.has(at, size) && this.bytes.subarray(at, at + size);
  }

  has(at, size) {
    return (at >= 0 && at + size <= this.length) || reject("it is not an .npz file: it is cut off");
  }
}

// Where the list of parts begins and how many there are.
function directoryOf(file) {
  const end = file.length - 22; // the list is the last thing in the file
  if (file.long(end) !== 0x06054b50) reject("it is not an .npz file: it does not end with a list of parts");
  const count = file.short(end + 10), size = file.long(end + 12), start = file.long(end + 16);
  const odd = file.long(end + 4) !== 0 || file.short(end + 8) !== count;
  const wide = end >= 20 && file.long(end - 20) === 0x07064b50;
  if (odd || wide || start + size !== end || file.short(end + 20)) {
    reject("its list of parts is not where numpy writes it");
  }
  return { start, end, count };
}

function partOf(file, at) {
  if (file.long(at) !== 0x02014b50) reject("it is not an .npz file: its list of parts is damaged");
  const sizes = [file.short(at + 28), file.short(at + 30), file.short(at + 32)];
  const part = {
    name: latin(file.slice(at + 46, sizes[0])),
    method: file.short(at + 10),
    crc: file.long(at + 16),
    packed: file.long(at + 20),
    size: file.long(at + 24),
    header: file.long(at + 42),
    next: at + 46 + sizes[0],
  };
  const version = file.short(at + 6) & 0xff, secret = file.short(at + 8) & 0x61;
  const wide = [part.packed, part.size, part.header].includes(0xffffffff);
  if (version > 63 || secret || wide || sizes[1] || sizes[2] || file.short(at + 34)) {
    reject("a part of it is packed in an unusual way");
  }
  if (![0, 8].includes(part.method)) reject("it is compressed in an unusual way");
  if (!/^[\x21-\x7e]+$/.test(part.name)) reject("a part of it has an unusual name");
  return part;
}

// What a part holds as it lies in the file: behind a header of its own, and in front of `limit`, the next of the
// list, so that parts lie in its order.
function packedBytes(file, part, limit) {
  const names = file.long(part.header) === 0x04034b50 && file.short(part.header + 26);
  const start = part.header + 30 + names + file.short(part.header + 28);
  const same = names && latin(file.slice(part.header + 30, names)) === part.name;
  if (!same || start + part.packed > limit) reject("it is not an .npz file: a part is not where it should be");
  return file.slice(start, part.packed);
}

async function inflated(packed, size) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader(), whole = new Uint8Array(size);
  let filled = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      if (filled + value.length > size) reject("it is not an .npz file: a part is larger than its listed size");
      whole.set(value, filled);
      filled += value.length;
    }
  } catch (error) {
    if (error instanceof Rejected) throw error;
    reject("it is not an .npz file: a part cannot be unpacked");
  } finally {
    reader.cancel().catch(() => {});
  }
  return filled === size ? whole : reject("it is not an .npz file: a part is smaller than its listed size");
}

// What a part unpacks to, of which every byte is needed: some readers overlook bytes behind its end.
async function wholly(packed, size) {
  const whole = await inflated(packed, size);
  const shorter = await inflated(packed.subarray(0, -1), size).catch(() => null);
  return shorter ? reject("it is not an .npz file: a part does not end where it should") : whole;
}

// The parts of a zip by name.
async function unzip(bytes, most) {
  if (bytes.length > most) reject(`it has more than ${most} bytes`);
  const file = new Bytes(bytes), directory = directoryOf(file), parts = [];
  let at = directory.start;
  for (let n = 0; n < directory.count; n++) {
    parts.push(partOf(file, at));
    at = parts[n].next;
  }
  if (at !== directory.end) reject("it is not an .npz file: its list of parts is damaged");
  if (parts.reduce((sum, part) => sum + part.size, 0) > most) {
    reject(`it has more than ${most} bytes when it is unpacked`);
  }
  if (new Set(parts.map((part) => part.name)).size < parts.length) reject("it holds an array twice");
  const starts = [...parts.map((part) => part.header), directory.start];
  if (starts[0] !== 0) reject("it is not an .npz file: its first part is not at its beginning");
  const found = new Map();
  for (const [n, part] of parts.entries()) {
    const packed = packedBytes(file, part, starts[n + 1]);
    const data = part.method === 8 ? await wholly(packed, part.size) : packed;
    if (data.length !== part.size || crc32(data) !== part.crc) {
      reject("it is not an .npz file: a part is damaged");
    }
    found.set(part.name, data);
  }
  return found;
}

// Take an array of doubles out of the parts, if it is there; 0 in `shape` stands for any length.
function takeArray(parts, name, shape) {
  const data = parts.get(`${name}.npy`);
  if (data === undefined) return null;
  parts.delete(`${name}.npy`);
  const start = data.length < 10 ? data.length : 10 + data[8] + 256 * data[9];
  const npy = latin(data.subarray(0, 8)) === "\x93NUMPY\x01\x00";
  const header = npy && NPY_HEADER.exec(latin(data.subarray(10, start)));
  const sizes = header ? [header[1], header[2]].filter((size) => size).map(Number) : [];
  const fits = sizes.length === shape.length && sizes.every((n, i) => n > 0 && (!shape[i] || n === shape[i]));
  const count = sizes.reduce((product, n) => product * n, 1);
  if (!fits || data.length !== start + 8 * count) {
    reject(`${name} has another type, order or shape than needed`);
  }
  const view = new DataView(data.buffer, data.byteOffset + start);
  const flat = new Float64Array(count);
  for (let i = 0; i < count; i++) flat[i] = view.getFloat64(8 * i, true);
  if (!flat.every(Number.isFinite)) reject(`${name} has NaN or infinite values`);
  if (sizes.length === 1) return flat;
  return Array.from({ length: sizes[0] }, (_, i) => flat.subarray(i * sizes[1], (i + 1) * sizes[1]));
}

// Take a network out of the parts; the names of its layers begin with `end`.
function takeNetwork(parts, end) {
  const layers = [];
  for (;;) {
    const i = layers.length;
    const W = takeArray(parts, `${end}W${i}`, [0, i ? layers[i - 1].W.length : 0]);
    if (!W) break;
    layers.push({ W, b: takeArray(parts, `${end}b${i}`, [W.length]) });
  }
  if (!layers.length) reject("it holds no layer of a network");
  const n = layers[0].W[0].length;
  const matrix = takeArray(parts, "matrix", [n, 0]), offset = takeArray(parts, "offset", [n]);
  if (offset && !matrix) reject("it holds an offset without a matrix");
  const inputs = matrix ? matrix[0].length : n;
  const scale = takeArray(parts, "scale", [inputs]), shift = takeArray(parts, "shift", [inputs]);
  return { layers, scale, shift, matrix, offset };
}

function nothingLeft(parts, allowed) {
  const more = [...parts.keys()].filter((name) => !allowed.has(name));
  if (more.length) reject(`it holds unknown arrays: ${more.slice(0, 8).join(", ").slice(0, 200)}`);
}

// Read a file written by Network.save or by Shifts.save: { network } or { shifts: { low, high } }.
async function readModel(bytes) {
  const parts = await unzip(bytes, 8 * 2 * MAX_NUMBERS + 1000000);
  if (parts.has("low_W0.npy") || parts.has("high_W0.npy")) return { shifts: shiftsOf(parts) };
  const sizes = [...parts.values()].reduce((sum, data) => sum + data.length, 0);
  const most = 8 * MAX_NUMBERS + 1000000;
  if (bytes.length > most || sizes > most) reject(`it has more than ${MAX_NUMBERS} numbers`);
  const network = takeNetwork(parts, "");
  const about = ["format.npy", "precision.npy"]; // neither is any part of what a network computes
  for (let i = 0; i < network.layers.length; i++) {
    for (const name of ["rows", "columns", "shift", "bias"]) about.push(`fold_${name}${i}.npy`);
  }
  nothingLeft(parts, new Set(about));
  return { network };
}

function shiftsOf(parts) {
  const front = FRONT.filter((name) => parts.has(`${name}.npy`)).map((name) => [name, parts.get(`${name}.npy`)]);
  const low = takeNetwork(parts, "low_");
  for (const [name, data] of front) parts.set(`${name}.npy`, data); // one input map for both ends
  const high = takeNetwork(parts, "high_");
  nothingLeft(parts, new Set(["format.npy", "about.npy", "encoding.npy"]));
  if (shapeOf(low) !== shapeOf(high)) reject("its lower and upper ends have different shapes");
  return { low, high };
}

// -- networks --------------------------------------------------------------------------------------------

function shapeOf(network) {
  return network.layers.map(({ W, b }) => `${W.length}x${W[0].length}${b ? "+b" : ""}`).join(" ");
}

// All parameters, as lists of numbers in one order.
function rowsOf(network) {
  return network.layers.flatMap(({ W, b }) => (b ? [...W, b] : W));
}

function sameNumbers(a, b) {
  if (!a || !b) return !a && !b;
  return a.length === b.length && a.every((v, i) => v === b[i]);
}

function sameFront(one, other) {
  const rows = (network) => network.matrix || [];
  return (
    ["scale", "shift", "offset"].every((name) => sameNumbers(one[name], other[name])) &&
    rows(one).length === rows(other).length &&
    rows(one).every((row, i) => sameNumbers(row, rows(other)[i]))
  );
}

// The digest by which certificates name a network, or a box { low, high }.
function digestOf(given) {
  const sha = new Sha256(), ends = given.layers ? { "": given } : { low_: given.low, high_: given.high };
  const add = (name, shape, rows) => {
    sha.update(new TextEncoder().encode(`${name} ${shape.join(" ")}\n`));
    for (const row of rows) {
      const view = new DataView(new ArrayBuffer(8 * row.length));
      row.forEach((v, i) => view.setFloat64(8 * i, v + 0, true)); // -0 + 0 is 0
      sha.update(new Uint8Array(view.buffer));
    }
  };
  const [first] = Object.values(ends);
  first.layers.forEach((_, i) => {
    for (const [end, { layers }] of Object.entries(ends)) {
      const { W, b } = layers[i];
      add(`${end}W${i}`, [W.length, W[0].length], W);
      if (b) add(`${end}b${i}`, [b.length], [b]);
    }
  });
  for (const name of FRONT) {
    const part = first[name];
    if (!part) continue;
    if (name === "matrix") add(name, [part.length, part[0].length], part);
    else add(name, [part.length], [part]);
  }
  return sha.hex();
}
