// Transcendental functions. On float32 they are evaluated in double precision and rounded once, so that the error is
// little over half a unit in the last place (tests/codegen/test_math.py measures it); on float64, and where no vector
// form is given, lane by lane by the C library.
//
// Range reduction and the forms approximated are those of Cody & Waite, Software Manual for the Elementary Functions
// (1980); logarithms by s = f / (2 + f) and sine and cosine by a two-part pi/2 as in Sun's fdlibm (1993); erf as a
// rational function of x^2 as in Cody, Rational Chebyshev Approximations for the Error Function (1969); erfc by
// Shepherd & Laframboise, Chebyshev Approximation of (1 + 2x) exp(x^2) erfc(x) (1981). Coefficients are minimax fits in
// the relative error by Lawson's iterated least squares; the bound of each is given as a power of two.

namespace weld {

// a * b + c rounded once where the machine has such an instruction.
template <class V> INLINE V fma(V a, V b, V c) {
  if constexpr (is_pair<V>) return {fma(a.lo, b.lo, c.lo), fma(a.hi, b.hi, c.hi)};
#if __has_builtin(__builtin_elementwise_fma)
  else return __builtin_elementwise_fma(a, b, c);
#elif defined(__FMA__)
  else if constexpr (same<V, double>) return __builtin_fma(a, b, c);
  else if constexpr (same<V, float>) return __builtin_fmaf(a, b, c);
  else if constexpr (same<V, native<double, 2>::type>) return __builtin_ia32_vfmaddpd(a, b, c);
  else if constexpr (same<V, native<double, 4>::type>) return __builtin_ia32_vfmaddpd256(a, b, c);
#if defined(__AVX512F__)
  else if constexpr (same<V, native<double, 8>::type>) return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#endif
  else return a * b + c;
#else
  else return a * b + c;
#endif
}

// c0 + c1 x + c2 x^2 + ...
template <class V> INLINE V poly(V, double c) { return splat_as<V>(c); }
template <class V, class... C> INLINE V poly(V x, double c, C... higher) {
  return fma(poly(x, higher...), x, splat_as<V>(c));
}

// Arithmetic signs for pairs, so that what follows reads alike for one lane, one register and two.
#define PAIR_SIGN(sign)                                                                                              \
  template <class H> INLINE Pair<H> operator sign(Pair<H> a, Pair<H> b) { return {a.lo sign b.lo, a.hi sign b.hi}; } \
  template <class H> INLINE Pair<H> operator sign(Pair<H> a, element_of<H> b) { return {a.lo sign b, a.hi sign b}; } \
  template <class H> INLINE Pair<H> operator sign(element_of<H> a, Pair<H> b) { return {a sign b.lo, a sign b.hi}; }
PAIR_SIGN(+) PAIR_SIGN(-) PAIR_SIGN(*) PAIR_SIGN(/) PAIR_SIGN(&) PAIR_SIGN(|) PAIR_SIGN(^)
template <class H> INLINE Pair<H> operator<<(Pair<H> a, int bits) { return {a.lo << bits, a.hi << bits}; }
template <class H> INLINE Pair<H> operator>>(Pair<H> a, int bits) { return {a.lo >> bits, a.hi >> bits}; }

// a / b, with one division for two registers. b is finite and not 0 in every lane, and far from overflow.
template <class V> INLINE V quotient(V a, V b) {
  if constexpr (is_pair<V>) {
    const auto over = 1 / (b.lo * b.hi);
    return {a.lo * (b.hi * over), a.hi * (b.lo * over)};
  } else return a / b;
}

// f, which works on doubles, on as many floats.
template <class F, class V> INLINE V in_double(F f, V x) {
  return convert_to<V>(f(convert_to<vec_of<double, count_of<V>, count_of<V>>>(x)));
}

// x between two bounds; a NaN stays, or is the lower bound.
template <class V> INLINE V clamp(V x, float low, float high) {
  return smaller_of(splat_as<V>(high), larger_of(splat_as<V>(low), x));
}
template <class V> INLINE V clamp_number(V x, float low, float high) {
  return smaller_of(splat_as<V>(high), larger_of(x, splat_as<V>(low)));
}

// ---- cores in double precision -------------------------------------------------------------------

constexpr double nearest = 0x1.8p52;  // added to |x| < 2^51, it rounds to a whole number in the low bits
constexpr double ln2 = 0x1.62e42fefa39efp-1;
constexpr double log2e = 0x1.71547652b82fep0;

// exp(r) for |r| <= ln(2)/2 (2^-28), times 2^n, n being the whole number in the low bits of `shifted`.
template <class D> INLINE D exp_scaled(D r, D shifted) {
  typedef bits_of<D> I;
  const D p = poly(r, 1, 1, 0.4999999344385339, 0.16666520573371515, 0.04166838873546007, 0.008368723954288018,
                   0.0013814583745804343);
  return bits_as<D>(bits_as<I>(p) + (bits_as<I>(shifted) << 52));
}

struct Exp {
  template <class D> INLINE D operator()(D x) const {
    const D shifted = fma(x, splat_as<D>(log2e), splat_as<D>(nearest));
    return exp_scaled(fma(shifted - nearest, splat_as<D>(-ln2), x), shifted);
  }
};

struct Exp2 {
  template <class D> INLINE D operator()(D x) const {
    const D shifted = x + nearest;
    return exp_scaled((x - (shifted - nearest)) * ln2, shifted);
  }
};

// 2^n (exp(r) - 1) + (2^n - 1); exp(r) - 1 has relative error 2^-32.
struct Expm1 {
  template <class D> INLINE D operator()(D x) const {
    typedef bits_of<D> I;
    const D shifted = fma(x, splat_as<D>(log2e), splat_as<D>(nearest));
    const D r = fma(shifted - nearest, splat_as<D>(-ln2), x);
    const D p = r * poly(r, 1, 0.5000000044189847, 0.16666666370288308, 0.04166636079266692, 0.008333389391166233,
                         0.001394063757548192, 0.0001984587874155787);
    const D scale = bits_as<D>((bits_as<I>(shifted) << 52) + bits_as<I>(splat_as<D>(1)));
    return fma(scale, p, scale - 1);
  }
};

// tanh(x) = t / (t + 2), t = exp(2x) - 1, for x >= 0.
struct Tanh {
  template <class D> INLINE D operator()(D x) const {
    const D t = Expm1()(x + x);
    return quotient(t, t + 2);
  }
};

// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for positive normal x.
template <class D> INLINE D exponent_of(D x, D &f) {
  typedef bits_of<D> I;
  typedef typename shape<D>::template like<uint64_t> U;
  constexpr int64_t root_half = 0x3fe6a09e667f3bcd, bias = 1024;
  const I above = bits_as<I>(x) - root_half;
  f = bits_as<D>((above & 0xfffffffffffff) + root_half) - 1;
  const U biased = bits_as<U>(above + (bias << 52)) >> 52;
  return bits_as<D>(biased | 0x4330000000000000u) - (0x1p52 + bias);
}

// log(1 + f) = 2s + s z P(z), z = s^2 (2^-37).
template <class D> INLINE D log_near_one(D f) {
  const D s = quotient(f, f + 2), z = s * s;
  const D p = poly(z, 0.6666666564459395, 0.4000033540099512, 0.2853729429240936, 0.23582437804292505);
  return fma(s * z, p, s + s);
}

struct Log {
  template <class D> INLINE D operator()(D x) const {
    D f;
    const D k = exponent_of(x, f);
    return fma(k, splat_as<D>(ln2), log_near_one(f));
  }
};

struct Log2 {
  template <class D> INLINE D operator()(D x) const {
    D f;
    const D k = exponent_of(x, f);
    return fma(log_near_one(f), splat_as<D>(log2e), k);
  }
};

struct Log10 {
  template <class D> INLINE D operator()(D x) const { return Log2()(x) * 0x1.34413509f79ffp-2; }
};

struct Log1p {
  template <class D> INLINE D operator()(D x) const {
    D f;
    const D k = exponent_of(x + 1, f);
    return fma(k, splat_as<D>(ln2), log_near_one(select(eq(k, splat_as<D>(0)), x, f)));
  }
};

// x P(x^2) / Q(x^2) for |x| <= 3.925 (2^-28.8).
struct Erf {
  template <class D> INLINE D operator()(D x) const {
    const D z = x * x;
    const D p = poly(z, 1.1283791695878336, 0.19245795171937846, 0.05558125327105059, 0.004194359678079798,
                     0.00040569311058243816, 6.586797346556688e-06);
    const D q = poly(z, 1, 0.5038948401167996, 0.11722197637364959, 0.016212656631629, 0.001407435942982471,
                     7.109809122621535e-05, 2.488972655130258e-07);
    return quotient(x * p, q);
  }
};

// exp(-t^2) P((t - 2) / (t + 2)) / (1 + 2t), t = |x| <= 10.6, with one division (2^-30); 2 - that where x < 0.
struct Erfc {
  template <class D> INLINE D operator()(D x) const {
    const D t = abs(x), a = t + 2, b = t + t + 1, over = quotient(splat_as<D>(1), a * b);
    const D p = poly((t - 2) * b * over, 1.2769783826877523, -0.09276382066388861, -0.16603052243328265,
                     0.16405104061227935, -0.05421781549828429, -0.008030875479341823, 0.008709026560701157,
                     0.001252716284425904, -0.0014206308150706108, -0.0004007181489504284, 0.0001692519270818601,
                     7.935076696208342e-05);
    const D tail = Exp()(0.0 - t * t) * p * (a * over);
    return select(lt(x, splat_as<D>(0)), 2 - tail, tail);
  }
};

// sin(x + quarter * pi/2) for |x| < 2^20: x less a multiple of pi/2, whose upper part times that multiple is exact.
template <int quarter> struct Sine {
  template <class D> INLINE D operator()(D x) const {
    typedef bits_of<D> I;
    const D shifted = fma(x, splat_as<D>(0x1.45f306dc9c883p-1), splat_as<D>(nearest)), n = shifted - nearest;
    const D r = x - n * 1.5707963267341256 - n * 6.077100506506192e-11, z = r * r;
    const D sine = r * poly(z, 1, -0.16666666640588843, 0.008333329280584736, -0.0001983930442936055,
                            2.7180465646467478e-06);
    const D cosine = fma(z * z, poly(z, 0.041666645554271464, -0.0013887309862167848, 2.4432412789214715e-05),
                         fma(z, splat_as<D>(-0.5), splat_as<D>(1)));
    const I turn = bits_as<I>(shifted) + quarter;
    const D value = select(ne((I)(turn & 1), splat_as<I>(0)), cosine, sine);
    return bits_as<D>(bits_as<I>(value) ^ ((turn & 2) << 62));
  }
};

// ---- on float32 and float64 ------------------------------------------------------------------------

// name(x): the library's on float64, `vector` on one operation's worth of float32.
#define FUNCTION(name, library, vector)                                                    \
  template <class V> INLINE V name(V x) {                                                  \
    if constexpr (same<element_of<V>, double>)                                             \
      return map_lanes([](double lane) { return __builtin_##library(lane); }, x);          \
    else if constexpr (is_pair<V>) return {name(x.lo), name(x.hi)};                        \
    else return vector;                                                                    \
  }

template <class V> INLINE V keep_nan(V x, V y) { return select(isnan(x), x, y); }

// A logarithm: y where x is positive and finite, and what the limit says elsewhere.
template <class V> INLINE V log_limits(V x, V from_pole, V y) {
  const V zero = splat_as<V>(0), inf = splat_as<V>(__builtin_inff());
  const V bad = select(eq(from_pole, zero), neg(inf), splat_as<V>(__builtin_nanf("")));
  return select(gt(from_pole, zero), select(lt(x, inf), y, x), bad);
}

template <int quarter, class V> INLINE V sine(V x) {
  if (all_lanes(lt(abs(x), splat_as<V>(0x1p20f)))) return in_double(Sine<quarter>(), x);
  return map_lanes([](float lane) { return quarter ? __builtin_cosf(lane) : __builtin_sinf(lane); }, x);
}

FUNCTION(exp, exp, in_double(Exp(), clamp(x, -110, 90)))
FUNCTION(exp2, exp2, in_double(Exp2(), clamp(x, -160, 130)))
FUNCTION(expm1, expm1, copysign(in_double(Expm1(), clamp(x, -40, 90)), x))
FUNCTION(tanh, tanh, keep_nan(x, copysign(in_double(Tanh(), clamp_number(abs(x), 0, 10)), x)))
FUNCTION(log, log, log_limits(x, x, in_double(Log(), x)))
FUNCTION(log2, log2, log_limits(x, x, in_double(Log2(), x)))
FUNCTION(log10, log10, log_limits(x, x, in_double(Log10(), x)))
FUNCTION(log1p, log1p, copysign(log_limits(x, add(x, splat_as<V>(1)), in_double(Log1p(), x)), x))
FUNCTION(erf, erf, keep_nan(x, in_double(Erf(), clamp_number(x, -3.925f, 3.925f))))
FUNCTION(erfc, erfc, keep_nan(x, in_double(Erfc(), clamp_number(x, -10.6f, 10.6f))))
FUNCTION(sin, sin, sine<0>(x))
FUNCTION(cos, cos, sine<1>(x))

// float32 and float64 alike: the C library, lane by lane.
#define LIBRARY_1(name)                                                                       \
  INLINE float name##_lane(float x) { return __builtin_##name##f(x); }                        \
  INLINE double name##_lane(double x) { return __builtin_##name(x); }                         \
  template <class V> INLINE V name(V x) {                                                     \
    return map_lanes([](element_of<V> lane) { return name##_lane(lane); }, x);                \
  }
#define LIBRARY_2(name)                                                                       \
  INLINE float name##_lane(float x, float y) { return __builtin_##name##f(x, y); }            \
  INLINE double name##_lane(double x, double y) { return __builtin_##name(x, y); }            \
  template <class V> INLINE V name(V x, V y) {                                                \
    return map_lanes([](element_of<V> a, element_of<V> b) { return name##_lane(a, b); }, x, y); \
  }
LIBRARY_1(tan) LIBRARY_1(asin) LIBRARY_1(acos) LIBRARY_1(atan) LIBRARY_1(sinh) LIBRARY_1(cosh)
LIBRARY_1(asinh) LIBRARY_1(acosh) LIBRARY_1(atanh)
LIBRARY_2(pow) LIBRARY_2(atan2) LIBRARY_2(hypot) LIBRARY_2(nextafter)

// ---- roots and rounding -------------------------------------------------------------------------------

template <class V> INLINE V sqrt(V x) {
  if constexpr (is_pair<V>) return {sqrt(x.lo), sqrt(x.hi)};
  else if constexpr (same<V, float>) return __builtin_sqrtf(x);
  else if constexpr (same<V, double>) return __builtin_sqrt(x);
#if __has_builtin(__builtin_elementwise_sqrt)
  else return __builtin_elementwise_sqrt(x);
#else
#if defined(__AVX512F__)
  else if constexpr (same<V, native<float, 16>::type>) return __builtin_ia32_sqrtps512_mask(x, x, -1, 4);
  else if constexpr (same<V, native<double, 8>::type>) return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);
#endif
#if defined(__AVX__)
  else if constexpr (same<V, native<float, 8>::type>) return __builtin_ia32_sqrtps256(x);
  else if constexpr (same<V, native<double, 4>::type>) return __builtin_ia32_sqrtpd256(x);
#endif
#if defined(__SSE2__)
  else if constexpr (same<V, native<float, 4>::type>) return __builtin_ia32_sqrtps(x);
  else if constexpr (same<V, native<double, 2>::type>) return __builtin_ia32_sqrtpd(x);
#endif
  else return map_lanes([](element_of<V> lane) { return element_of<V>(__builtin_sqrt(lane)); }, x);
#endif
}
template <class V> INLINE V rsqrt(V x) { return div(splat_as<V>(1), sqrt(x)); }

// To the nearest whole number, ties to even: 2^23 (2^52), added and subtracted, rounds off the fraction of what is less.
template <class V> INLINE V round(V x) {
  const V large = splat_as<V>(1 / std::numeric_limits<element_of<V>>::epsilon());
  const V size = abs(x);
  return select(lt(size, large), copysign(sub(add(size, large), large), x), x);
}
template <class V> INLINE V floor(V x) {
  const V whole = round(x);
  return copysign(sub(whole, select(gt(whole, x), splat_as<V>(1), splat_as<V>(0))), x);
}
template <class V> INLINE V ceil(V x) { return neg(floor(neg(x))); }
template <class V> INLINE V trunc(V x) { return copysign(floor(abs(x)), x); }

template <class T> INLINE T fmod_lane(T a, T b) {
  if constexpr (same<T, float>) return __builtin_fmodf(a, b);
  else if constexpr (same<T, double>) return __builtin_fmod(a, b);
  else return truncmod_lane(a, b);
}
LANES_2(fmod, fmod_lane(x, y))

// ---- float16 --------------------------------------------------------------------------------------------

// Eight lanes at a time by the machine's instruction; other counts are padded or cut to that.
template <int W, int N, int L, class V> INLINE vec_of<float, W, N> from_float16(Lanes<W, N, L>, V v) {
#if defined(__F16C__) && __has_builtin(__builtin_ia32_vcvtph2ps256)
  typedef native<int16_t, 8>::type H8;
  constexpr int M = N < 8 ? 8 : N;
  int16_t half[M] = {};
  float out[M];
  store_as<N>((uint16_t *)half, v);
  UNROLLED for (int at = 0; at < M; at += 8) {
    H8 eight;
    std::memcpy(&eight, half + at, sizeof eight);
    const auto wide = __builtin_ia32_vcvtph2ps256(eight);
    std::memcpy(out + at, &wide, sizeof wide);
  }
  return load_as<vec_of<float, W, N>, N>(out);
#else
  // The exponent is rebiased by a multiplication, which also makes subnormals right; inf and NaN keep the largest one.
  typedef vec_of<uint32_t, W, N> Wide;
  typedef vec_of<float, W, N> Float;
  const Wide bits = convert_to<Wide>(v);
  const Wide size = map([](auto x) { return (decltype(x))((x & 0x7fffu) << 13); }, bits);
  const Wide sign = map([](auto x) { return (decltype(x))((x & 0x8000u) << 16); }, bits);
  const Float scaled = mul(bits_as<Float>(size), splat_as<Float>(0x1p112f));
  const Wide special = map([](auto x) { return (decltype(x))(x | 0x7f800000u); }, size);
  const auto finite = lt(size, splat_as<Wide>(0x7c00u << 13));
  return bits_as<Float>(bitor_(select(finite, bits_as<Wide>(scaled), special), sign));
#endif
}

template <int W, int N, int L, class V> INLINE vec_of<uint16_t, W, N> to_float16(Lanes<W, N, L>, V v) {
#if defined(__F16C__) && __has_builtin(__builtin_ia32_vcvtph2ps256)
  typedef native<float, 8>::type F8;
  constexpr int M = N < 8 ? 8 : N;
  float full[M] = {};
  uint16_t out[M];
  store_as<N>(full, v);
  UNROLLED for (int at = 0; at < M; at += 8) {
    F8 eight;
    std::memcpy(&eight, full + at, sizeof eight);
    const auto narrow = __builtin_ia32_vcvtps2ph256(eight, 0);
    std::memcpy(out + at, &narrow, sizeof narrow);
  }
  return load_as<vec_of<uint16_t, W, N>, N>(out);
#else
  // Adding a power of two whose last bit is worth as much as the half's rounds to nearest even, subnormals included.
  typedef vec_of<uint32_t, W, N> Wide;
  typedef vec_of<float, W, N> Float;
  const Wide bits = bits_as<Wide>(v);
  const Wide size = map([](auto x) { return (decltype(x))(x & 0x7fffffffu); }, bits);
  const Wide sign = map([](auto x) { return (decltype(x))((x >> 16) & 0x8000u); }, bits);
  const auto shorten = [](auto x) { return (decltype(x))((x - 0x38000000u + 0xfffu + ((x >> 13) & 1u)) >> 13); };
  const Wide normal = map(shorten, size);
  const Wide tiny = bits_as<Wide>(add(bits_as<Float>(size), splat_as<Float>(0.5f)));
  const Wide subnormal = sub(tiny, splat_as<Wide>(0x3f000000u));
  Wide half = select(lt(size, splat_as<Wide>(0x38800000u)), subnormal, normal);
  half = select(ge(size, splat_as<Wide>(0x477ff000u)), splat_as<Wide>(0x7c00u), half);
  half = select(gt(size, splat_as<Wide>(0x7f800000u)), splat_as<Wide>(0x7e00u), half);
  return convert_to<vec_of<uint16_t, W, N>>(bitor_(half, sign));
#endif
}

}  // namespace weld
