// Doubles as exact binary numbers, and as text.
//
// A double is an integer times a power of two. Here an exact number is a BigInt v together with a count p
// of binary places, and means v / 2^p. A product adds the places of its factors; a sum is taken of numbers
// with the same places. No bit is ever dropped, except where `inUnits` says so.

"use strict";

class Rejected extends Error {}

function reject(reason) {
  throw new Rejected(reason);
}

const doubleView = new DataView(new ArrayBuffer(8));

// The parts of a finite double: sign, integer m < 2^53 and exponent e with |x| = m * 2^e.
function partsOf(x) {
  doubleView.setFloat64(0, x);
  const high = doubleView.getUint32(0), low = doubleView.getUint32(4);
  const biased = (high >>> 20) & 0x7ff;
  const top = (high & 0xfffff) + (biased ? 0x100000 : 0);
  return { negative: high >>> 31 === 1, top, low, e: biased ? biased - 1075 : -1074 };
}

function trailingZeros(word) {
  return 31 - Math.clz32(word & -word);
}

// How many binary places a double has: the least p >= 0 for which x * 2^p is an integer.
function placesOf(x) {
  const { top, low, e } = partsOf(x);
  if (!top && !low) return 0;
  return Math.max(0, -(e + (low ? trailingZeros(low) : 32 + trailingZeros(top))));
}

// The exponent of a double: the least k with |x| < 2^k; 0 for zero.
function exponentOf(x) {
  const { top, low, e } = partsOf(x);
  if (!top && !low) return 0;
  return e + (top ? 64 - Math.clz32(top) : 32 - Math.clz32(low));
}

// The largest integer v with v / 2^p <= x. It is x itself wherever p >= placesOf(x).
function inUnits(x, p) {
  const { negative, top, low, e } = partsOf(x);
  const m = BigInt(top) * 0x100000000n + BigInt(low);
  const v = negative ? -m : m;
  const by = e + p;
  return by >= 0 ? v << BigInt(by) : v >> BigInt(-by); // >> rounds down, also below zero
}

// A sum of exact numbers with different places.
class Sum {
  constructor(v, p) {
    this.v = v;
    this.p = p;
  }

  add(v, p) {
    if (p > this.p) {
      this.v <<= BigInt(p - this.p);
      this.p = p;
    }
    this.v += v << BigInt(this.p - p);
  }
}

// Sign of v / 2^p - w / 2^q.
function compare(v, p, w, q) {
  const left = p < q ? v << BigInt(q - p) : v;
  const right = q < p ? w << BigInt(p - q) : w;
  return left < right ? -1 : left > right ? 1 : 0;
}

function dot(a, b) {
  let total = 0n;
  for (let j = 0; j < a.length; j++) if (a[j]) total += a[j] * b[j];
  return total;
}

function positive(v) {
  return v > 0n ? v : 0n;
}

// The shortest text that means this double, as Python writes it.
function written(x) {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
  const sign = x < 0 || Object.is(x, -0) ? "-" : "";
  const [mantissa, power] = Math.abs(x).toExponential().split("e");
  const digits = mantissa.replace(".", ""), e = Number(power);
  if (e < -4 || e >= 16) {
    const size = String(Math.abs(e)).padStart(2, "0");
    return `${sign}${mantissa}e${e < 0 ? "-" : "+"}${size}`;
  }
  if (e < 0) return `${sign}0.${"0".repeat(-e - 1)}${digits}`;
  const whole = digits.slice(0, e + 1).padEnd(e + 1, "0");
  return `${sign}${whole}.${digits.slice(e + 1) || "0"}`;
}
