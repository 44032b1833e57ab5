# %% [markdown]
# # sequence
# %%
print(1)
