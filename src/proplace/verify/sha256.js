// SHA-256 (FIPS 180-4). Pages opened from a file may lack crypto.subtle.

function firstPrimes(count) {
  const found = [];
  for (let n = 2; found.length < count; n++) if (found.every((p) => n % p)) found.push(n);
  return found;
}

// The first 32 bits behind the point of the k-th root of n, exactly: floor(root(n) * 2^32) mod 2^32.
function rootBits(n, k) {
  const aim = BigInt(n) << BigInt(32 * k);
  let low = 0n, high = 1n << 40n;
  while (high - low > 1n) {
    const middle = (low + high) >> 1n;
    if (middle ** BigInt(k) <= aim) low = middle;
    else high = middle;
  }
  return Number(low & 0xffffffffn);
}

const SHA_ROUNDS = Uint32Array.from(firstPrimes(64), (n) => rootBits(n, 3));
const SHA_START = Uint32Array.from(firstPrimes(8), (n) => rootBits(n, 2));

class Sha256 {
  constructor() {
    this.state = SHA_START.slice();
    this.block = new Uint8Array(64);
    this.filled = 0;
    this.length = 0;
    this.schedule = new Uint32Array(64);
  }

  update(bytes) {
    this.length += bytes.length;
    for (let at = 0; at < bytes.length;) {
      const part = bytes.subarray(at, at + 64 - this.filled);
      this.block.set(part, this.filled);
      this.filled += part.length;
      at += part.length;
      if (this.filled === 64) this.compress();
    }
    return this;
  }

  compress() {
    const w = this.schedule, view = new DataView(this.block.buffer);
    const turn = (x, n) => (x >>> n) | (x << (32 - n));
    for (let t = 0; t < 16; t++) w[t] = view.getUint32(4 * t);
    for (let t = 16; t < 64; t++) {
      const x = w[t - 15], y = w[t - 2];
      const s0 = turn(x, 7) ^ turn(x, 18) ^ (x >>> 3), s1 = turn(y, 17) ^ turn(y, 19) ^ (y >>> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    let [a, b, c, d, e, f, g, h] = this.state;
    for (let t = 0; t < 64; t++) {
      const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25), choice = (e & f) ^ (~e & g);
      const t1 = (h + s1 + choice + SHA_ROUNDS[t] + w[t]) | 0;
      const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22), most = (a & b) ^ (a & c) ^ (b & c);
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + s0 + most) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((v, i) => (this.state[i] += v));
    this.filled = 0;
  }

  hex() {
    const bits = 8 * this.length;
    this.update(Uint8Array.of(0x80));
    this.update(new Uint8Array((120 - this.filled) % 64));
    const end = new DataView(new ArrayBuffer(8));
    end.setUint32(0, Math.floor(bits / 2 ** 32));
    end.setUint32(4, bits % 2 ** 32);
    this.update(new Uint8Array(end.buffer));
    return Array.from(this.state, (v) => v.toString(16).padStart(8, "0")).join("");
  }
}
