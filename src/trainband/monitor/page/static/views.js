// The views. The visible one is loaded first, the others once it is drawn.

const NAMES = [
  ['overview', 'Overview'],
  ['curves', 'Curves'],
  ['workers', 'Workers'],
  ['servers', 'Parameter servers'],
  ['variables', 'Variables'],
  ['timeline', 'Timeline'],
  ['profile', 'Profile'],
  ['checkpoints', 'Checkpoints'],
  ['configuration', 'Configuration'],
];

/** {id, title, open(root, store)}; `open` is null until the view is loaded. */
export const VIEWS = NAMES.map(([id, title]) => ({ id, title, open: null }));

/** Loads the file of a view, unless it is loaded. */
export async function load(view) {
  if (!view.open) view.open = (await import(`./views/${view.id}.js`))[view.id].open;
}
