// Numbers for people, formatted as on the command line.

const number = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export const NONE = '–';

export function count(value) {
  return value === null || value === undefined ? NONE : number.format(value);
}

/** A number per second, with two significant digits below 10. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value >= 10 || value === 0 ? number.format(value) : String(Number(value.toPrecision(2)));
}

export function decimal(value, digits = 4) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 1000 ? 1 : digits);
}

/** Bytes, in powers of 1000. */
export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  if (value < 1000) return `${Math.round(value)} B`;
  const power = Math.min(5, Math.floor(Math.log10(value) / 3));
  return `${(value / 1000 ** power).toFixed(1)} ${['B', 'kB', 'MB', 'GB', 'TB', 'PB'][power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, '0')} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, '0')} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const today = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const other = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit' });
const whole = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

export function clock(at) {
  if (!at) return NONE;
  const date = new Date(at * 1000);
  return date.toDateString() === new Date().toDateString() ? today.format(date) : other.format(date);
}

export function moment(at) {
  return at ? whole.format(new Date(at * 1000)) : NONE;
}

export function percent(share) {
  return share === null || share === undefined ? NONE : `${Math.round(share * 100)}%`;
}
