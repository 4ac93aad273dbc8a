// Values under the pointer, and with the arrow keys in a focused chart. The page is complete without it.
const tip = document.getElementById('value');
function hide() {
  tip.hidden = true;
  document.querySelectorAll('.picked').forEach(mark => mark.classList.remove('picked'));
}
function show(mark) {
  hide();
  tip.textContent = mark.dataset.value;
  tip.hidden = false;
  mark.classList.add('picked');
  const at = mark.getBoundingClientRect(), box = tip.getBoundingClientRect();
  const left = Math.min(at.right + 8, document.documentElement.clientWidth - box.width - 4);
  const above = at.top - box.height - 8;
  tip.style.left = Math.max(4, left) + 'px';
  tip.style.top = (above > 4 ? above : at.bottom + 8) + 'px';
}
for (const image of document.querySelectorAll('.image')) {
  const marks = [...image.querySelectorAll('title')].map(title => {
    const mark = title.parentNode;
    mark.dataset.value = title.textContent;
    title.remove();
    return mark;
  });
  if (!marks.length) continue;
  let current = -1;
  image.tabIndex = 0;
  image.addEventListener('pointermove', event => {
    let nearest = null, distance = 24;
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      const across = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const along = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const away = Math.hypot(across, along);
      if (away < distance) [nearest, distance] = [mark, away];
    }
    if (nearest) show(nearest); else hide();
  });
  image.addEventListener('pointerleave', hide);
  image.addEventListener('blur', hide);
  image.addEventListener('keydown', event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === 'Escape') hide();
    if (!step) return;
    event.preventDefault();
    current = (current + step + marks.length) % marks.length;
    show(marks[current]);
  });
}
