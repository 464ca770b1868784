// Draws in the browser demo as people do, and prints what the page says, as JSON. Run by test_browser.py:
//   node drawing_pad.mjs PLAYWRIGHT_CORE CHROMIUM URL DRAWINGS.json SCREENSHOTS
import { readFileSync } from 'node:fs';

const [playwright, executablePath, url, drawings, screenshots] = process.argv.slice(2);
const { chromium } = await import(playwright);
const shapes = JSON.parse(readFileSync(drawings, 'utf8'));

const WIDE = { viewport: { width: 1200, height: 800 } };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };
const result = { requests: [], complaints: [], mouse: {}, touch: {}, screens: {} };

// Chromium refuses its sandbox to root, as which tests run in containers; the only page is ours.
const browser = await chromium.launch({ executablePath, args: process.getuid() === 0 ? ['--no-sandbox'] : [] });

async function opened(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on('request', (request) => result.requests.push(request.url()));
  page.on('console', (message) => result.complaints.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (error) => result.complaints.push(`error: ${error.message}`));
  page.on('requestfailed', (request) => result.complaints.push(`failed: ${request.url()}`));
  await page.goto(url);
  await page.waitForSelector('body[data-ready]');
  return page;
}

async function points(page, stroke) {
  const { x, y, width, height } = await page.locator('#pad').boundingBox();
  return stroke.map(([across, down]) => [x + across * width, y + down * height]);
}

async function withMouse(page, strokes) {
  for (const stroke of strokes) {
    const [first, ...rest] = await points(page, stroke);
    await page.mouse.move(...first);
    await page.mouse.down();
    for (const point of rest) await page.mouse.move(...point, { steps: 4 });
    await page.mouse.up();
  }
}

async function withFinger(page, strokes) {
  const devtools = await page.context().newCDPSession(page);
  const touch = (type, at) =>
    devtools.send('Input.dispatchTouchEvent', { type, touchPoints: at ? [{ x: at[0], y: at[1] }] : [] });
  for (const stroke of strokes) {
    const [first, ...rest] = await points(page, stroke);
    await touch('touchStart', first);
    for (const point of rest) await touch('touchMove', point);
    await touch('touchEnd');
  }
}

/** What the page says once the prediction of the finished drawing is there. */
async function said(page) {
  await page.waitForFunction(() => document.getElementById('result').getAttribute('aria-busy') === 'false');
  return page.evaluate(() => ({
    digit: document.getElementById('digit').textContent,
    spoken: document.getElementById('spoken').textContent,
    timing: document.getElementById('timing').textContent,
    shares: [...document.querySelectorAll('#bars .share')].map((share) => share.textContent),
  }));
}

const fits = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight);

let page = await opened(WIDE);
for (const [digit, strokes] of Object.entries(shapes)) {
  await withMouse(page, strokes);
  result.mouse[digit] = await said(page);
  await page.click('#clear');
}
result.cleared = await page.evaluate(() => ({
  answer: document.getElementById('answer').textContent,
  disabled: document.getElementById('clear').disabled,
  focused: document.activeElement.id,
}));
await withMouse(page, shapes[7]);
await withMouse(page, [[[0.1, 0.9], [0.9, 0.1]]]);
await page.click('#undo');
result.undone = await said(page);

// A 1 with the keys: from the top, down.
await page.focus('#pad');
await page.keyboard.press('Escape');
await page.keyboard.press('Space');
for (let step = 0; step < 16; step += 1) await page.keyboard.press('ArrowDown');
await page.keyboard.press('Space');
result.keyboard = await said(page);
await page.context().close();

for (const colorScheme of ['light', 'dark']) {
  page = await opened({ ...PHONE, colorScheme });
  for (const digit of colorScheme === 'light' ? [3, 8] : [5]) {
    if (digit !== 3 && digit !== 5) await page.tap('#clear');
    await withFinger(page, shapes[digit]);
    result.touch[digit] = await said(page);
  }
  result.screens[`phone-${colorScheme}`] = await fits(page);
  await page.screenshot({ path: `${screenshots}/phone-${colorScheme}.png` });
  await page.context().close();

  page = await opened({ ...WIDE, colorScheme });
  await withMouse(page, shapes[colorScheme === 'light' ? 2 : 6]);
  await said(page);
  await page.waitForTimeout(300); // the bars grow
  result.screens[`wide-${colorScheme}`] = await fits(page);
  result[`ground-${colorScheme}`] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.screenshot({ path: `${screenshots}/wide-${colorScheme}.png` });
  await page.context().close();
}

// Without a model the page says what is missing.
page = await browser.newPage();
await page.route('**/model/**', (route) => route.fulfill({ status: 404 }));
await page.goto(url);
await page.waitForSelector('body.failed');
result.without = await page.textContent('#answer');

await browser.close();
console.log(JSON.stringify(result));
